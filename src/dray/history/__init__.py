"""The history: what happened to jobs, in a SQL database (`history_url`), after the broker has forgotten them.

fingerprint  the fingerprint by which errors are grouped
redaction    arguments and results as JSON, with secret fields hidden
parameters   the parameter names of tasks, as a document of the broker
words        texts as words that both databases index alike
rows         records and events of the broker as rows of the history
database     the seam: one connection, its statements and migrations; the thread that uses it
sqlite       that seam on SQLite
postgres     that seam on PostgreSQL
rollups      counts and durations per minute, hour and day; errors by fingerprint
store        writes batches of rows, the position in the feed and its gaps; deletes old rows
language     the search text: fields, words, times
search       a search as SQL; found jobs, attempts and events
summary      statistics over time and error groups, read from the sums
broker_view  the shapes of both, and what the broker alone can say
api          `app.history`
"""
