#!/bin/sh
# Installation steps of the Dockerfile: install.sh torch|bow|compiler CUDA
set -eu

pip=/opt/bow/bin/pip
install() { "$pip" install --no-cache-dir --disable-pip-version-check --constraint constraints.txt "$@"; }

# Debian packages Python's headers separately; other Pythons include them.
has_headers() { python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2> /dev/null; }

step=$1 cuda=$2 extra=""
case $cuda in
    13) extra="[cu13]" ;;
    12) extra="[cu12]" ;;
    none | yes) ;;
    *) echo "CUDA must be 13, 12 or none, got $cuda" >&2; exit 2 ;;
esac

case $step in
    torch)
        set -- torch
        case $cuda in
            # The newest torch that is built for CUDA 12.
            12) sed -i 's/^torch==.*/torch==2.10.0/' constraints.txt ;;
            # PyPI's torch is built for CUDA. A configured package index takes precedence over torch's CPU index.
            none) "$pip" config list | grep -Eq '(index-url|find-links)=' \
                || set -- torch --extra-index-url https://download.pytorch.org/whl/cpu ;;
        esac
        install "$@"
        ;;
    bow) install ".$extra" ;;
    compiler)
        case $cuda in
            none | yes)
                set -- g++
                has_headers || set -- g++ python3-dev
                apt-get update
                apt-get install --yes --no-install-recommends "$@"
                rm -rf /var/lib/apt/lists/*
                ;;
        esac
        ;;
    *) echo "install.sh knows torch, bow and compiler, got $step" >&2; exit 2 ;;
esac
