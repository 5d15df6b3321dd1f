#!/usr/bin/env bash
# Build the Dockerfile without a container engine, and run bow inside the image as the image's user.
#
# Needs root, buildah and debootstrap (apt install buildah debootstrap), and no GPU: CUDA=none. The base is a minimal
# Debian with Python, or BASE_IMAGE, which is pulled. The build uses the pip configuration of this machine, and checks
# that none of it stays in the image. WORK=DIR caches the base and the image for the next run; default: build/image.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(realpath -m "${WORK:-build/image}")
base=${BASE_IMAGE:-localhost/bow-base}
store=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
buildah() { command buildah "${store[@]}" "$@"; }
say() { echo "image-test: $*"; }
fail() { echo "image-test: $*" >&2; exit 1; }
pip_setting() {
    python3 -m pip config get ":env:.$1" 2> /dev/null || python3 -m pip config get "global.$1" 2> /dev/null || true
}

for command in buildah debootstrap; do
    type -P "$command" > /dev/null || fail "needs $command: apt install $command"
done
[ "$(id -u)" = 0 ] || fail "needs root, for debootstrap"
mkdir -p "$work"

if [ -z "${BASE_IMAGE:-}" ] && ! buildah inspect --type image "$base" > /dev/null 2>&1; then
    say "making the base, a minimal Debian with Python"
    rm -rf "$work/debian"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "${DEBIAN:-bookworm}" "$work/debian" \
        > "$work/debootstrap.log" || { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
    rm -rf "$work"/debian/var/cache/apt/archives/*.deb "$work"/debian/var/lib/apt/lists/*
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/debian" / > /dev/null
    buildah commit --quiet "$container" "$base" > /dev/null
    buildah rm "$container" > /dev/null
    rm -rf "$work/debian"
    say "made the base in $SECONDS s"
fi

# Pass pip's configuration as a secret, and mount the paths it refers to on /mnt, which is empty in every Debian.
rm -rf "$work/pip"
mkdir -p "$work/pip"
configure() { [ -z "$2" ] || echo "$1 = $2" >> "$work/pip/pip.conf"; }
echo "[global]" > "$work/pip/pip.conf"
indexes=$(pip_setting index-url)
more_indexes=$(pip_setting extra-index-url | tr ' ' '\n' | grep -v '^file:' | xargs || true)
configure index-url "$indexes"
configure extra-index-url "$more_indexes"
for folder in $(pip_setting find-links); do
    cp "$folder"/*.whl "$work/pip/" 2> /dev/null || true
done
wheels=$(compgen -G "$work/pip/*.whl" || true)
configure find-links "${wheels:+/mnt}"
certificates=$(pip_setting cert)
if [ -n "$certificates" ]; then
    cp "$certificates" "$work/pip/certificates.pem"
    configure cert /mnt/certificates.pem
fi

say "building"
buildah rmi bow > /dev/null 2>&1 || true
began=$SECONDS
buildah bud --format docker --isolation chroot --secret "id=pip,src=$work/pip/pip.conf" --volume "$work/pip:/mnt:ro" \
    --build-arg BASE="$base" --build-arg CUDA=none --tag bow . > "$work/build.log" 2>&1 \
    || { tail -n 40 "$work/build.log" >&2; exit 1; }
took=$((SECONDS - began))
of_image() { buildah inspect --type image --format "$1" bow; }
size=$(buildah images --format '{{.Size}}' bow)
say "built in $took s, $size, of which the base is $(buildah images --format '{{.Size}}' "$base")"

container=$(buildah from bow)
trap 'buildah rm "$container" > /dev/null' EXIT
inside() { buildah run --isolation chroot "$container" -- "$@"; }
train() { inside bow-entrypoint train learners=2 run.progress=false "$@"; }

user=$(inside id -un)
[ "$user" = bow ] || fail "the image runs as $user"
description=$(of_image '{{.Config}}')
for trace in PIP_ /mnt "$work" $(sed -E 's|https?://([^ /]*@)?([^ /]*)[^ ]*|\2|g' <<< "$indexes $more_indexes"); do
    ! grep -qF "$trace" <<< "$description" || fail "the image's configuration has kept $trace"
done
inside test ! -e /etc/pip.conf || fail "the image has kept pip's configuration"

say "the health check"
health=$(of_image '{{range .Docker.Config.Healthcheck.Test}}{{.}} {{end}}')
# shellcheck disable=SC2086
inside ${health#CMD }

say "engine eager"
train epochs=1 engine=eager run=runs/eager
inside test -s runs/eager/model.safetensors

say "engine graph"
inside sh -c 'test -s .cache/bow/runtime-*/bow_native.so' || fail "the image has no native runtime"
train epochs=1 engine=graph run=runs/graph
inside sh -c 'test "$(ls -d .cache/bow/runtime-* | wc -l)" = 1' || fail "engine graph has compiled its runtime again"

say "two devices"
train epochs=1 engine=graph devices=2 run=runs/devices

say "report, schedule and plan"
inside bow-entrypoint report runs/eager
inside bow-entrypoint schedule simulate recipe=logistic_regression out=runs/schedule
inside bow-entrypoint plan network=nmt size=tiny topology=p100_node budget_s=2 out=runs/plan
inside sh -c 'test -s .cache/bow/planner-*/planner.so' || fail "bow plan has not compiled its simulator"

say "SIGTERM"
inside sh -c '
    bow-entrypoint train learners=2 run.progress=false engine=eager epochs=100000 run=runs/stopped &
    until [ -s runs/stopped/metrics.jsonl ]; do sleep 1; kill -0 $! || exit 1; done
    kill $!; wait $!; echo "ended with status $?"
    test -s runs/stopped/checkpoints/*.pt' || fail "SIGTERM has left no checkpoint"

echo "image-test passed: built in $took s, $size; bow doctor and bow train ran as $user"
