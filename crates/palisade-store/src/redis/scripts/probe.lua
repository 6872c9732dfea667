#!lua
-- The server's clock. The script may write, so a server that is full, read-only or
-- cannot persist refuses it: only a server that can take charges is healthy.

local time = redis.call('TIME')
return tonumber(time[1]) * 1000000 + tonumber(time[2])
