"""Work that one worker at a time, the leader, does for all of them.

leadership   the document that one worker holds for a term at a time
duties       runs the duties while this worker leads; upkeep; the archive of statistics
ticker       the duty that puts the jobs of schedules
history      the duty that writes the history
speculation  the duty that gives slow jobs a second run
placing      the duty that finishes flows whose client died
declare      a main program that writes the schedules of the code, for workers without executors
"""
