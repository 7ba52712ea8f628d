"""The demo: real calls through the OpenAI client to a stand-in for the servers."""
