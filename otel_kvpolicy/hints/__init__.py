"""How a server is told whether to store a call, which servers may be told, and what they refuse."""
