"""What flow control costs and what it is worth.

Each module beside this one that has a function `run(quick, folder)` is a part of it: it measures, and returns
Markdown and the figures behind it.
"""
