"""`make upgrade-check`: workers and a producer of the previous code go on after a migrate.

previous    which code that is, from the history of this checkout, and where it is put
app         the app of all of them; run as a program it is a producer
play        old workers at work, one of them stopped; migrate; new ones join; judge
"""
