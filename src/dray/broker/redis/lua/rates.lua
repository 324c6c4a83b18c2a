-- rates: counts starts against a rate: GCRA in whole microseconds, as `policy.Rate`.
--
-- A rate is {interval in µs, burst}. The time (`tat`) up to which it is used is in `rate`, see limits.

-- A time too far ahead comes from a clock that went back.
local function gcra_used(tat, rate, at)
  if tat < at or tat > at + rate[2] * rate[1] + 60000000 then return at end
  return tat
end

local function gcra_starts(used, rate, at)
  return math.max(0, math.floor((at + rate[2] * rate[1] - used) / rate[1]))
end
