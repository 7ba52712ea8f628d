"""The adaptive rule: learns which calls come back and what a place in the cache is worth."""
