"""Schedules: cron and interval rules that make jobs.

words       A cron expression in plain words: "every 5 minutes", "at 03:00 on Monday to Friday"
cron        When a rule is due: cron expressions in a time zone, and plain intervals
schedule    The stored schedule, and the jobs that its due ticks make; pure, without I/O or clock
store       Schedules as documents of the broker; keeps those that code declares up to date
decorators  `@app.cron(…)` and `@app.every(…)`, and the options of a schedule
api         `app.schedules`: list, create, change, pause, trigger and delete at run time
"""
