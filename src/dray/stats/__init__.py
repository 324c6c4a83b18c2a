"""Counts and durations of jobs and runs.

sketch      durations in 64 buckets, from which percentiles are read
tallies     counts and durations of runs by task, as documents of workers
arrivals    the number of accepted jobs by task, queue and source
task_stats  statistics as users see them (`app.stats()`)
"""
