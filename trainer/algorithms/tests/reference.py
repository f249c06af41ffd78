"""Recomputes losses, corrections, reductions, advantages and divergences with numpy alone, for `tests/it/reference.rs`.

    python3 trainer/algorithms/tests/reference.py > trainer/algorithms/tests/fixtures/reference.json

The formulas are written from the papers that `src/losses/mod.rs`, `src/advantages/`, `src/off_policy.rs` and `src/kl.rs`
cite, row by row and token by token, and share nothing with the Rust code.
"""

import json
import math

import numpy as np

LENGTHS = [12, 3, 17, 8, 5]
PROMPTS = ["p", "p", "q", "q", "q"]
JUNK = 999.0  # what stands at masked tokens


def make_batch():
    random = np.random.default_rng(20)
    tokens = sum(LENGTHS)
    offsets = [0, *np.cumsum(LENGTHS).tolist()]
    mask = random.random(tokens) > 0.2
    mask[offsets[-2] :] = False
    mask[offsets[1]] = True
    old = random.uniform(-3.0, -0.1, tokens)
    batch = {
        "logprobs": np.minimum(old + random.uniform(-0.9, 0.9, tokens), -0.01),
        "old_logprobs": old,
        "rollout_logprobs": np.minimum(old + random.uniform(-0.4, 0.4, tokens), -0.01),
        "ref_logprobs": np.minimum(old + random.uniform(-4.0, 4.0, tokens), -0.01),
        "advantages": random.uniform(-2.0, 2.0, tokens),
        "scales": random.uniform(0.01, 0.2, tokens),
        "values": np.round(random.uniform(-1.0, 1.0, tokens) * 64) / 64,
        "old_values": np.round(random.uniform(-1.0, 1.0, tokens) * 64) / 64,
        "rewards": np.round(random.uniform(-1.0, 1.0, tokens) * 64) / 64,
    }
    for name in ("logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs", "advantages", "scales"):
        batch[name][~mask] = JUNK
    return batch, mask, offsets


BATCH, MASK, OFFSETS = make_batch()
ROWS = [range(a, b) for a, b in zip(OFFSETS, OFFSETS[1:])]
LIVE = [t for t in range(len(MASK)) if MASK[t]]


def ratio(a, b):
    return math.exp(min(20.0, max(-20.0, a - b)))


def clamp(x, low, high):
    return min(high, max(low, x))


def live_in(row):
    return [t for t in row if MASK[t]]


# --- policy losses: one token's loss, and figures -------------------------------------------------------------------


def surrogate(r, a, low, high):
    return -min(r * a, clamp(r, 1 - low, 1 + high) * a), clamp(r, 1 - low, 1 + high) * a < r * a


def share(flags):
    return sum(flags) / len(flags)


def policy_loss(config):
    """Token losses by token, and figures."""
    lp, old, mu = BATCH["logprobs"], BATCH["old_logprobs"], BATCH["rollout_logprobs"]
    adv = BATCH["advantages"]
    kind = config["policy_loss_type"]
    low, high = config.get("eps_clip_low", 0.2), config.get("eps_clip_high", 0.2)
    losses, figures = {}, {}

    if kind in ("regular", "dual_clip", "clip_cov"):
        flags, bounded = [], []
        for t in LIVE:
            losses[t], flag = surrogate(ratio(lp[t], old[t]), adv[t], low, high)
            flags.append(flag)
            if kind == "dual_clip":
                bound = -config["clip_ratio_c"] * adv[t]
                at_bound = adv[t] < 0 and bound < losses[t]
                bounded.append(at_bound)
                losses[t] = bound if at_bound else losses[t]
        figures["clip_ratio"] = share(flags)
        if kind == "dual_clip":
            figures["dual_clip_ratio"] = share(bounded)
    if kind == "clip_cov":
        choice = config["clip_cov"]
        assert choice["clip_ratio"] == 1.0, "a random choice cannot be recomputed here: take all candidates"
        chosen = []
        for t in LIVE:
            r = ratio(lp[t], old[t])
            outside = (adv[t] > 0 and r > 1 + high) or (adv[t] < 0 and r < 1 - low)
            chosen.append(not outside and choice["clip_cov_lb"] < covariances()[t] < choice["clip_cov_ub"])
            losses[t] = 0.0 if chosen[-1] else losses[t]
        assert any(chosen) and not all(chosen)
        figures["clip_cov_ratio"] = share(chosen)
    if kind == "kl_cov":
        cov, choice = covariances(), config["kl_cov"]
        wanted = max(1, int(choice["kl_cov_frac"] * len(LIVE)))
        top = sorted(LIVE, key=lambda t: -cov[t])[:wanted]
        for t in LIVE:
            penalty = choice["ppo_kl_coef"] * abs(lp[t] - old[t]) if t in top else 0.0
            losses[t] = -adv[t] * ratio(lp[t], old[t]) + penalty
        figures["kl_cov_ratio"] = wanted / len(LIVE)
    if kind == "gspo":
        flags = []
        for row in ROWS:
            live = live_in(row)
            if not live:
                continue
            r = math.exp(min(10.0, np.mean([lp[t] - old[t] for t in live])))
            for t in live:
                losses[t], flag = surrogate(r, adv[t], low, high)
                flags.append(flag)
        figures["clip_ratio"] = share(flags)
    if kind == "sapo":
        for t in LIVE:
            tau = config["sapo"]["tau_pos"] if adv[t] > 0 else config["sapo"]["tau_neg"]
            gate = 1 / (1 + math.exp(-tau * (ratio(lp[t], old[t]) - 1)))
            losses[t] = -adv[t] * gate * 4 / tau
    if kind == "cispo":
        section = config["cispo"]
        anchor = mu if section["anchor"] == "rollout" else old
        raw = {t: ratio(lp[t], anchor[t]) for t in LIVE}
        low, high = section["cispo_eps_clip_low"], section["cispo_eps_clip_high"]
        kept = {t: clamp(raw[t], 1 - low, 1 + high) for t in LIVE}
        losses = {t: -adv[t] * kept[t] * lp[t] for t in LIVE}
        figures = {
            "clip_ratio": share([kept[t] != raw[t] for t in LIVE]),
            "cispo/ratio_mean": float(np.mean(list(raw.values()))),
            "cispo/ratio_clamped_mean": float(np.mean(list(kept.values()))),
            "cispo/ratio_max": max(raw.values()),
            "cispo/ratio_min": min(raw.values()),
        }
    if kind == "rollout_is":
        flags = []
        for t in LIVE:
            r = ratio(lp[t], mu[t])
            flags.append(not 1 - low < r < 1 + high)
            losses[t] = 0.0 if flags[-1] else -r * adv[t] * lp[t]
        figures["clip_ratio"] = share(flags)
    if kind == "dppo":
        section, flags = config["dppo"], []
        for t in LIVE:
            p, q = math.exp(lp[t]), math.exp(mu[t])
            if section["dppo_type"] == "binary_tv":
                divergence = abs(p - q)
            else:
                divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
            rose = adv[t] > 0 and p > q and divergence > section["delta_high"]
            fell = adv[t] < 0 and p < q and divergence > section["delta_low"]
            flags.append(rose or fell)
            losses[t] = 0.0 if flags[-1] else -ratio(lp[t], mu[t]) * adv[t]
        figures["clip_ratio"] = share(flags)
    if kind == "cross_entropy":
        losses = {t: -lp[t] for t in LIVE}
    if kind == "importance_sampling":
        raw = {t: math.exp(lp[t] - old[t]) for t in LIVE}
        losses = {t: -raw[t] * adv[t] for t in LIVE}
        figures["importance_ratio"] = float(np.mean(list(raw.values())))
    assert sorted(losses) == LIVE, kind
    return losses, figures


def covariances():
    lp, adv = BATCH["logprobs"], BATCH["advantages"]
    mean_lp, mean_adv = np.mean([lp[t] for t in LIVE]), np.mean([adv[t] for t in LIVE])
    return {t: (adv[t] - mean_adv) * (lp[t] - mean_lp) for t in LIVE}


# --- off-policy correction ------------------------------------------------------------------------------------------


def correction(config):
    old, mu = BATCH["old_logprobs"], BATCH["rollout_logprobs"]
    log = {t: old[t] - mu[t] for t in LIVE}
    rho = {t: ratio(old[t], mu[t]) for t in LIVE}
    rows = [row for row in ROWS if live_in(row)]
    left = set(LIVE)
    weights = dict.fromkeys(LIVE, 1.0)
    values = list(rho.values())
    figures = {
        "is_ratio_mean": float(np.mean(values)),
        "is_ratio_std": float(np.std(values)),
        "is_ratio_max": max(values),
        "is_ratio_min": min(values),
    }

    low, high = config.get("outlier_token_is_threshold_low"), config.get("outlier_token_is_threshold_high")
    if low is not None or high is not None:
        over = [any(high is not None and rho[t] > high for t in live_in(row)) for row in rows]
        under = [any(low is not None and rho[t] < low for t in live_in(row)) for row in rows]
        for row, a, b in zip(rows, over, under):
            if a or b:
                left -= set(row)
        figures["outlier_seq_masked_ratio"] = share([a or b for a, b in zip(over, under)])
        figures["outlier_seq_over_high_ratio"] = share(over)
        figures["outlier_seq_under_low_ratio"] = share(under)

    low, high = config.get("token_mask_is_threshold_low"), config.get("token_mask_is_threshold_high")
    if low is not None and high is not None:
        out = {t for t in left if not low <= rho[t] <= high}
        figures["token_mask_ratio"] = len(out) / len(left)
        left -= out

    def product(row):
        return math.exp(clamp(sum(log[t] for t in row if t in left), -20.0, 20.0))

    if config.get("tis_ratio_type") == "token":
        cap = config.get("token_tis_ratio_clip_high", 2.0)
        weights = {t: min(rho[t], cap) for t in LIVE}
        figures["tis_token_clip_high_ratio"] = share([rho[t] > cap for t in left])
    if config.get("tis_ratio_type") == "sequence":
        cap = config.get("sequence_tis_ratio_clip_high", 5.0)
        for row in rows:
            for t in live_in(row):
                weights[t] = min(product(row), cap)
        figures["tis_seq_clip_high_ratio"] = share([product(row) > cap for row in rows if left & set(row)])

    if config.get("sequence_mask_metric"):
        rows = [row for row in rows if left & set(row)]
        if config["sequence_mask_metric"] == "geometric":
            name, low, high = "geo", config.get("geo_mask_low", 0.99), config.get("geo_mask_high", 1.01)
            value = [math.exp(np.mean([log[t] for t in row if t in left])) for row in rows]
        else:
            name, low, high = "product", config.get("product_mask_low", 0.5), config.get("product_mask_high", 2.0)
            value = [product(row) for row in rows]
        for row, x in zip(rows, value):
            if not low <= x <= high:
                left -= set(row)
        figures[f"{name}_sequence_mask_masked_ratio"] = share([not low <= x <= high for x in value])
        figures[f"{name}_sequence_mask_over_high_ratio"] = share([x > high for x in value])
        figures[f"{name}_sequence_mask_under_low_ratio"] = share([x < low for x in value])
    weights = {t: weights[t] for t in left}
    return weights, figures


# --- reductions, divergences, advantages, values --------------------------------------------------------------------


def reductions(kept):
    """Row scales by reduction and by whether dropped tokens count; the weights are 1, 0.5, 0.5, 1, 1."""
    weights = [1.0, 0.5, 0.5, 1.0, 1.0]
    cases = []
    for counted in (True, False):
        count = [len(live_in(row)) if counted else len([t for t in row if t in kept]) for row in ROWS]
        there = [counted or n > 0 for n in count]
        total = sum(w for w, here in zip(weights, there) if here)
        prompts = {p: sum(w * n for w, n, q in zip(weights, count, PROMPTS) if p == q) for p in PROMPTS}
        number = len({p for p, here in zip(PROMPTS, there) if here})
        formulas = {
            "token_mean": lambda i: weights[i] / sum(w * n for w, n in zip(weights, count)),
            "sequence_mean": lambda i: weights[i] / (total * count[i]),
            "seq_mean_token_sum_norm": lambda i: weights[i] / (total * 16),
            "prompt_mean": lambda i: weights[i] / (number * prompts[PROMPTS[i]]),
        }
        for kind, formula in formulas.items():
            # A row without tokens has no scale that could matter.
            scales = [formula(i) if count[i] else None for i in range(len(ROWS))]
            cases.append({"kind": kind, "count_masked_tokens": counted, "scales": scales})
    tokens = [len(live_in(row)) for row in ROWS]
    kept_tokens = [len([t for t in row if t in kept]) for row in ROWS]
    return {"weights": weights, "tokens": tokens, "kept_tokens": kept_tokens, "max_seq_len": 16, "cases": cases}


def divergences():
    lp, ref = BATCH["logprobs"], BATCH["ref_logprobs"]
    answers = {}
    for kind in ("k1", "abs", "k2", "k3"):
        total = 0.0
        for t in LIVE:
            d = lp[t] - ref[t]
            x = clamp(-d, -20.0, 20.0)
            k3 = clamp(math.exp(x) - x - 1, -10.0, 10.0)
            total += {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": k3}[kind] * BATCH["scales"][t]
        answers[kind] = total
    return answers


def whitened(values):
    live = [values[t] for t in LIVE]
    mean, var = np.mean(live), np.var(live, ddof=1)
    return [(values[t] - mean) / math.sqrt(var + 1e-8) if MASK[t] else 0.0 for t in range(len(MASK))]


def advantages():
    rewards, values = BATCH["rewards"], BATCH["values"]
    scores = [sum(rewards[t] for t in row) for row in ROWS]
    answers = {}

    def by_group(formula):
        flat = [0.0] * len(MASK)
        for i, row in enumerate(ROWS):
            group = [s for s, p in zip(scores, PROMPTS) if p == PROMPTS[i]]
            for t in live_in(row):
                flat[t] = formula(scores[i], np.array(group))
        return flat

    answers["grpo"] = by_group(lambda s, g: (s - g.mean()) / (g.std(ddof=1) + 1e-6))
    answers["rloo"] = by_group(lambda s, g: s - (g.sum() - s) / (len(g) - 1))
    answers["maxrl"] = by_group(lambda s, g: (s - g.mean()) / (g.mean() + 1e-6))
    gamma, lam = 0.9, 0.8
    returns, raw = {}, {}
    for row in ROWS:
        for t in row:
            returns[t] = sum(gamma ** (u - t) * rewards[u] for u in row if u >= t)
            value = lambda u: values[u] if u in row else 0.0  # noqa: B023, E731
            delta = {u: rewards[u] + gamma * value(u + 1) - value(u) for u in row if u >= t}
            raw[t] = sum((gamma * lam) ** (u - t) * delta[u] for u in delta)
    answers["reinforce++"] = whitened(returns)
    answers["gae"] = whitened(raw)
    gae_returns = [raw[t] + values[t] if MASK[t] else 0.0 for t in range(len(MASK))]
    return {"gamma": gamma, "lambd": lam, "advantages": answers, "gae_returns": gae_returns}


def critic():
    total = 0.0
    for t in LIVE:
        v, old, target = BATCH["values"][t], BATCH["old_values"][t], BATCH["rewards"][t]
        clipped = old + clamp(v - old, -0.2, 0.2)
        total += BATCH["scales"][t] * max((v - target) ** 2, (clipped - target) ** 2) / 2
    return total


# --- cases ----------------------------------------------------------------------------------------------------------

LOSSES = [
    {"policy_loss_type": "regular"},
    {"policy_loss_type": "regular", "eps_clip_low": 0.1, "eps_clip_high": 0.28},
    {"policy_loss_type": "dual_clip", "clip_ratio_c": 1.5},
    {"policy_loss_type": "gspo", "eps_clip_low": 0.03, "eps_clip_high": 0.04},
    {"policy_loss_type": "sapo", "sapo": {"tau_pos": 1.0, "tau_neg": 1.05}},
    {"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_low": 0.3, "cispo_eps_clip_high": 0.5, "anchor": "old"}},
    {"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 0.5, "anchor": "rollout"}},
    {"policy_loss_type": "rollout_is"},
    {"policy_loss_type": "dppo", "dppo": {"dppo_type": "binary_tv", "delta_low": 0.05, "delta_high": 0.1}},
    {"policy_loss_type": "dppo", "dppo": {"dppo_type": "binary_kl", "delta_low": 0.03, "delta_high": 0.1}},
    {"policy_loss_type": "clip_cov", "clip_cov": {"clip_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 1.0}},
    {"policy_loss_type": "kl_cov", "kl_cov": {"kl_cov_frac": 0.3, "ppo_kl_coef": 0.7}},
    {"policy_loss_type": "cross_entropy"},
    {"policy_loss_type": "importance_sampling"},
]

TOKEN_MASK = {"token_mask_is_threshold_low": 0.8, "token_mask_is_threshold_high": 1.2}
CORRECTIONS = [
    {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.2},
    {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 1.1},
    {"sequence_mask_metric": "geometric", "geo_mask_low": 0.95, "geo_mask_high": 1.05},
    {"sequence_mask_metric": "product", "product_mask_low": 0.8, "product_mask_high": 1.5},
    {"outlier_token_is_threshold_low": 0.71},
    {"outlier_token_is_threshold_high": 1.35},
    TOKEN_MASK,
    {
        "outlier_token_is_threshold_high": 1.35,
        "token_mask_is_threshold_low": 0.7,
        "token_mask_is_threshold_high": 1.3,
        "tis_ratio_type": "sequence",
        "sequence_mask_metric": "geometric",
        "geo_mask_low": 0.9,
        "geo_mask_high": 1.1,
    },
    {
        "outlier_token_is_threshold_low": 0.71,
        "token_mask_is_threshold_low": 0.7,
        "token_mask_is_threshold_high": 1.3,
        "tis_ratio_type": "token",
        "token_tis_ratio_clip_high": 1.1,
        "sequence_mask_metric": "product",
        "product_mask_low": 0.6,
        "product_mask_high": 0.73,
    },
]
REFUSES_CORRECTION = ("clip_cov", "kl_cov", "cross_entropy", "importance_sampling")


def main():
    loss_cases = []
    for config in LOSSES:
        losses, figures = policy_loss(config)
        flat = [losses[t] * BATCH["scales"][t] if MASK[t] else 0.0 for t in range(len(MASK))]
        corrected = []
        if config["policy_loss_type"] not in REFUSES_CORRECTION:
            for options in CORRECTIONS:
                weights, _ = correction(options)
                corrected.append(sum(losses[t] * BATCH["scales"][t] * weights[t] for t in weights))
        case = {"config": config, "loss": sum(flat), "token_losses": flat, "metrics": figures, "corrected": corrected}
        loss_cases.append(case)
    correction_cases = []
    for options in CORRECTIONS:
        weights, figures = correction(options)
        flat = [weights.get(t, 0.0) for t in range(len(MASK))]
        correction_cases.append({"config": options, "weights": flat, "metrics": figures})
    kept = set(correction(TOKEN_MASK)[0])
    document = {
        "prompts": PROMPTS,
        "row_offsets": OFFSETS,
        "mask": MASK.tolist(),
        "batch": {name: column.tolist() for name, column in BATCH.items()},
        "losses": loss_cases,
        "corrections": correction_cases,
        "reductions": reductions(kept),
        "kl": divergences(),
        "advantages": advantages(),
        "value_loss": critic(),
    }
    print(json.dumps(document, default=lambda x: x.item()))


if __name__ == "__main__":
    main()
