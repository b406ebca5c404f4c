"""The transport of events: messages, journal, relay, the plugin of the scheduler."""
