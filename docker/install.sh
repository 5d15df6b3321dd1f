#!/bin/sh
# What the Dockerfile installs: install.sh torch|bow|compiler CUDA
set -eu

pip=/opt/bow/bin/pip
options="--no-cache-dir --disable-pip-version-check"

# torch's wheels are built for CUDA 12 up to 2.10 and for CUDA 13 from 2.11 on; constraints.txt pins the tested versions.
torch="" extra="" constraints=""
case "$2" in
    13) torch="torch>=2.11" extra="[cu13]" constraints="-c constraints.txt" ;;
    12) torch="torch>=2.10,<2.11" extra="[cu12]" constraints="" ;;
    none) torch="torch" extra="" constraints="-c constraints.txt" ;;
    yes) ;;
    *) echo "CUDA must be 13, 12 or none, got $2" >&2; exit 2 ;;
esac

case "$1" in
    # shellcheck disable=SC2086
    torch) "$pip" install $options $constraints "$torch" ;;
    # shellcheck disable=SC2086
    bow) "$pip" install $options $constraints "$torch" ".$extra" ;;
    compiler)
        if [ "$2" = none ] || [ "$2" = yes ]; then
            headers=""
            python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2> /dev/null \
                || headers=python3-dev  # Debian has them in a package of their own
            apt-get update
            # shellcheck disable=SC2086
            apt-get install --yes --no-install-recommends g++ $headers
            rm -rf /var/lib/apt/lists/*
        fi
        ;;
    *) echo "install.sh knows torch, bow and compiler, got $1" >&2; exit 2 ;;
esac
