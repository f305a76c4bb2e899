"""Settings that every room's tests share."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fsstore",
    derandomize=True,  # the same examples at a desk and in CI
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fsstore")
