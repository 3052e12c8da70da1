"""The asyncio shell: it carries out what the machines without I/O decide."""
