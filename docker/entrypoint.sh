#!/bin/sh
# Arguments are those of bow: docker run bow train ...; other commands run unchanged: docker run bow python.

# A user other than the image's (docker run --user) has no home folder here.
[ -w "${HOME:-/}" ] || export HOME=/tmp

# Keep torch's and CuPy's compiled code next to bow's, in one volume.
export BOW_CACHE="${BOW_CACHE:-$HOME/.cache/bow}"
export CUPY_CACHE_DIR="${CUPY_CACHE_DIR:-$BOW_CACHE/cupy}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$BOW_CACHE/inductor}"

case "${1:-}" in
    train | report | runs | compare | predict | schedule | plan | doctor | help | -*) exec bow "$@" ;;
    "") exec bow train ;;
    *) exec "$@" ;;
esac
