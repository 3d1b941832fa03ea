#!/usr/bin/env bash
# Refusals and one-token completions a second through the gateway as a user
# starts it, beside bare axum, in one run: each figure is the median of rounds
# that take turns. Needs wrk (Debian: apt-get install wrk).
#
#   benches/http.sh [ROUNDS] [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
seconds=${2:-4}
connections=16

command -v wrk > /dev/null || { echo "wrk is not installed (Debian: apt-get install wrk)" >&2; exit 2; }
cargo build --quiet --release --example gateway --example worker --example bare
bin=target/release/examples
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$scratch"' EXIT

request='{"model":"tiny","messages":[{"role":"user","content":"Say one word, please."}],"max_tokens":1}'
cat > "$scratch/post.lua" << EOF
wrk.method = "POST"
wrk.body = '$request'
wrk.headers["content-type"] = "application/json"
EOF

# The address that a program says it listens on, on line $2 of its output.
address() {
    for _ in $(seq 100); do
        sed -n "$2s/.*http/http/p" "$1" | grep . && return
        sleep 0.1
    done
    echo "$1 does not start" >&2
    exit 1
}

start() {
    local name=$1
    shift
    "$@" > "$scratch/$name" 2> "$scratch/$name.err" &
}

# An engine without delay, and room for all that come.
start worker $bin/worker --listen 127.0.0.1:0 --engine-request-limit 1024 \
    --prefill-tokens-per-second 0 --decode-tokens-per-second 0
worker=$(address "$scratch/worker" 1)
# One gateway with that worker, and one whose only worker is busy for ever.
start routes $bin/gateway --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --worker "w=$worker"
start refuses $bin/gateway --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --worker "w=$worker" \
    --stale-after-ms 0 --active-prefill-tokens-threshold 0
start bare $bin/bare 127.0.0.1:0 "$worker"
routes=$(address "$scratch/routes" 1)
refuses=$(address "$scratch/refuses" 1)
bare=$(address "$scratch/bare" 1)
curl -sf "$(address "$scratch/refuses" 2)/worker_load" -H 'content-type: application/json' \
    -d '{"worker": "w", "dp_rank": 0, "active_prefill_tokens": 1}' > /dev/null

status() {
    curl -s -o /dev/null -w '%{http_code}' "$1" -H 'content-type: application/json' -d "$request"
}

# name, expected status, URL
targets=(
    "gateway, refusal|529|$refuses/v1/chat/completions"
    "bare axum, reads and parses|529|$bare/refuse"
    "bare axum, unread|529|$bare/refuse-unread"
    "gateway, completion|200|$routes/v1/chat/completions"
    "bare proxy, completion|200|$bare/v1/chat/completions"
    "worker itself, completion|200|$worker/v1/chat/completions"
)
for target in "${targets[@]}"; do
    IFS='|' read -r name expected url <<< "$target"
    got=$(status "$url")
    [[ $got == "$expected" ]] || { echo "$name: answers $got, not $expected" >&2; exit 1; }
done

for round in $(seq "$rounds"); do
    for n in "${!targets[@]}"; do
        IFS='|' read -r name _ url <<< "${targets[$n]}"
        wrk -t1 -c$connections -d"${seconds}s" --latency -s "$scratch/post.lua" "$url" > "$scratch/out"
        awk '/Requests\/sec/ { rate = $2 } $1 == "50%" { half = $2 } $1 == "99%" { most = $2 }
             END { print rate, half, most }' "$scratch/out" >> "$scratch/figures.$n"
    done
    echo "round $round of $rounds" >&2
done

median() { sort -n "$scratch/figures.$1" | sed -n "$(((rounds + 1) / 2))p"; }
printf '%-28s %12s %10s %10s\n' "at $connections connections" "requests/s" "p50" "p99"
for n in "${!targets[@]}"; do
    read -r rate half most <<< "$(median "$n")"
    printf '%-28s %12s %10s %10s\n' "${targets[$n]%%|*}" "$rate" "$half" "$most"
done
ratio() {
    awk -v a="$(median "$1")" -v b="$(median "$2")" -v what="$3" \
        'BEGIN { split(a, x, " "); split(b, y, " "); printf "%s: %.2f\n", what, x[1] / y[1] }'
}
ratio 0 1 "refusals, of a handler that reads and parses"
ratio 3 4 "completions, of a bare proxy"
