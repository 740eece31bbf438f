"""The names of the policies that a replay compares, for whoever computes nothing."""

POLICY_NAMES = (
    "sieve",
    "random",
    "uncertainty",
    "cheapest",
    "bo",
    "clairvoyant",
    "bisect",
    "exhaustive",
    "bo_alone",
    "pruned",
)
