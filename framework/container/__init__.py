"""The runtime of an app: workers, their task instances, the commit and the restore.

Named after Samza's container. It is internal: users work with the API in `framework`.
"""
