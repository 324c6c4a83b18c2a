"""Commands of `manage.py`, where Django looks for them.

commands/    one module per command
"""
