#!/usr/bin/env bash
# Builds the Dockerfile without a container engine, and runs bow inside the image as the image's user.
#
# Needs root, buildah and debootstrap (apt install buildah debootstrap), and no GPU: CUDA=none. The base is a minimal
# Debian with Python instead of python:slim. What pip is configured with here, it is configured with there.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${WORK:-build/image}
base=${BASE_IMAGE:-localhost/bow-base}
store=(--root "$PWD/$work/storage" --runroot "$PWD/$work/run" --storage-driver vfs)
certificates=/etc/ssl/certs
buildah() { command buildah "${store[@]}" "$@"; }

for command in buildah debootstrap; do
    type -P "$command" > /dev/null || { echo "make image-test needs $command: apt install $command" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "make image-test needs root, for debootstrap" >&2; exit 2; }
mkdir -p "$work"

if ! buildah inspect --type image "$base" > /dev/null 2>&1; then
    echo "base image: a minimal Debian with Python"
    [ -e "$work/debian.tar" ] || {
        rm -rf "$work/debian"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "${DEBIAN:-bookworm}" "$work/debian" > "$work/debootstrap.log"
        tar -C "$work/debian" -cf "$work/debian.tar" .
        rm -rf "$work/debian"
    }
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/debian.tar" / > /dev/null
    buildah commit --quiet "$container" "$base" > /dev/null
    buildah rm "$container" > /dev/null
fi

settings=(--volume "$certificates:$certificates:ro" --env "PIP_CERT=$certificates/ca-certificates.crt")
index=$(python3 -m pip config get global.index-url 2> /dev/null || true)
[ -z "$index" ] || settings+=(--env "PIP_INDEX_URL=$index")

echo "image"
buildah bud --isolation chroot "${settings[@]}" --build-arg BASE="$base" --build-arg CUDA=none --tag bow . > "$work/build.log" 2>&1 \
    || { tail -n 40 "$work/build.log" >&2; exit 1; }

container=$(buildah from bow)
trap 'buildah rm "$container" > /dev/null' EXIT
inside() { buildah run --isolation chroot "$container" -- "$@"; }

user=$(inside id -un)
[ "$user" = bow ] || { echo "the image runs as $user" >&2; exit 1; }
inside bow doctor
inside bow-entrypoint train epochs=1 learners=2 engine=eager progress=false run_dir=/home/bow/run
inside test -s /home/bow/run/model.safetensors
size=$(du -sm "$(buildah mount "$container")" | cut -f1)
echo "image-test passed: built, bow doctor and bow train ran as $user, $size MB"
