"""Values and rules. Pure: no clock, no I/O, no asyncio, no Spark.

The node, the client, the simulator and the pipeline run this code; it imports nothing of ours but itself.
"""
