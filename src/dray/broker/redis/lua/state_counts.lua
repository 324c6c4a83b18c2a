-- state_counts: reads the number of jobs per state.
-- uses: counts
--
-- returns state, number, ...
return counts_reply()
