"""`make package-check`: what is released, built and installed as a stranger gets it.

building     wheel and sdist, the same bytes every time
contents     what has to be in them, and what must not
empty        an environment with nothing in it, and what runs there
"""
