"""The agent: pid 1 of a local sandbox, and what every untrusted process in it descends from.

It stands alone on the standard library and runs under another interpreter than rlpipe's. The
bytes of files and of standard input go through descriptors that the host passes, never through
the agent, so that no later program finds them in memory that it was forked with.
"""
