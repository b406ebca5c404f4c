"""How events travel: messages, journal, relay, the plugin of the scheduler."""
