"""Rewards for tests of training: varied, and decided by the answer alone."""


def length(task, trajectory, sandbox):
    """From 0 to 1, by how many characters the answer has beyond a multiple of seven."""
    return len(trajectory.answer) % 7 / 6
