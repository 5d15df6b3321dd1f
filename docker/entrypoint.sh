#!/bin/sh
# docker run bow train ... is bow train ...; anything that is no command of bow is run as it is: docker run bow python

# A user other than the image's (docker run --user) has no home folder here.
[ -w "${HOME:-/}" ] || export HOME=/tmp

# What torch and CuPy compile lies beside what bow compiles: one volume keeps all of it.
export BOW_CACHE="${BOW_CACHE:-$HOME/.cache/bow}"
export CUPY_CACHE_DIR="${CUPY_CACHE_DIR:-$BOW_CACHE/cupy}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$BOW_CACHE/inductor}"

case "${1:-}" in
    train | report | runs | compare | predict | schedule | plan | doctor | help | -*) exec bow "$@" ;;
    "") exec bow train ;;
    *) exec "$@" ;;
esac
