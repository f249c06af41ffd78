"""The answer must contain the truth."""


def reward(response, row):
    return 1.0 if row["reward_spec"]["ground_truth"] in response else 0.0
