"""Workers and drivers killed and frozen at random; the model must come out identical."""
