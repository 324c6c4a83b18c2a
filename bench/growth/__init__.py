"""Growth: what many queues, tasks, groups and sleeping workers cost, each compared with one of them.

app.py     tasks that leave a mark when they run
cases.py   what is measured
"""
