"""What runs an app: workers, their task instances, the commit and the restore.

Named after Samza's container. Users meet none of it; `framework` itself is what they write.
"""
