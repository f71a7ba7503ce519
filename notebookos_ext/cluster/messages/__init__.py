"""What the processes say to each other, a file per conversation.

Every message is one msgpack-encoded tagged struct in a length-prefixed frame (`cluster/frames.py`).
"""
