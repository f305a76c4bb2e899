"""How much each row does: the whole measurement, and a quick one of the same work."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts of messages unless said otherwise. `rounds` is how often both sides take their turn."""

    name: str
    rounds: int
    puts: int  # one by one, a round
    batch_puts: int  # in batches or lines, a round
    stored: int  # in the store that engines read and query
    queries: int
    writes: int  # to `append`, a round
    big_log_lines: int
    synced_writes: int  # by each writer, a round
    listed: int  # in the mounted queue
    opened: int  # files opened, read and closed, a round
    links: int
    streamed: int
    recovered_bytes: int  # of the commit log
    growth: tuple[int, ...]
    growth_huge: int  # one more, when asked for
    growth_queues: tuple[int, ...]
    growth_queue_messages: int
    probes: int  # how often each thing is done at each size
    fleet_bytes: int  # of a broker's log
    fleet_files: int  # of which a read is planned
    fleet_servers: int
    loss_phases: int  # of a broker, with and without a scan of its store
    loss_seconds: int  # of each


FULL = Scale(
    name="full",
    rounds=5,
    puts=50_000,
    batch_puts=100_000,
    stored=200_000,
    queries=10_000,
    writes=50_000,
    big_log_lines=250_000,
    synced_writes=200,
    listed=1_000_000,
    opened=20_000,
    links=20_000,
    streamed=(1 << 30) // 257,
    recovered_bytes=1 << 30,
    growth=(10_000, 100_000, 1_000_000, 10_000_000),
    growth_huge=100_000_000,
    growth_queues=(1, 10, 100, 1_000),
    growth_queue_messages=100_000,
    probes=21,
    fleet_bytes=1 << 30,
    fleet_files=20_000,
    fleet_servers=100,
    loss_phases=10,
    loss_seconds=30,
)

QUICK = Scale(
    name="quick",
    rounds=3,
    puts=20_000,
    batch_puts=40_000,
    stored=50_000,
    queries=3_000,
    writes=15_000,
    big_log_lines=50_000,
    synced_writes=100,
    listed=100_000,
    opened=5_000,
    links=5_000,
    streamed=(96 << 20) // 257,
    recovered_bytes=128 << 20,
    growth=(10_000, 100_000, 400_000),
    growth_huge=1_000_000,
    growth_queues=(1, 1_000),
    growth_queue_messages=20_000,
    probes=11,
    fleet_bytes=128 << 20,
    fleet_files=2_000,
    fleet_servers=20,
    loss_phases=4,
    loss_seconds=10,
)
