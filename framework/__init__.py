"""What users write: apps, topics, tasks, stores, and what runs and tests them."""
