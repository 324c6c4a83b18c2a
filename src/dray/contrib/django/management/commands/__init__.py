"""One module per command.

dray    `manage.py dray`: every command of dray
"""
