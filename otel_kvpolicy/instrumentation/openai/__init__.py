"""Instruments the openai client at its one choke point."""
