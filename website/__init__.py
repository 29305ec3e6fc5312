"""The site made from docs/: `python -m website build`, or `make docs`.

The Markdown is plain, since it is read on a forge and in editors too; what a site needs beside it
is worked out here, on a copy:

    contents.py   the navigation: the lists of links in docs/index.md
    staging.py    the copy: pages from outside docs/, links that lead out of it
    conf.py       Sphinx: MyST for the Markdown, Furo for the looks, nothing from elsewhere
    links.py      every link and anchor of every document, without building anything
    pictures/     the drawings of docs/pictures
"""
