"""Framework: apps, topics, tasks and stores, and the code that runs and tests them."""
