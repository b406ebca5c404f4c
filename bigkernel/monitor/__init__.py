"""What a job tells, and who listens: events and scopes; the state, transport and views made of them."""
