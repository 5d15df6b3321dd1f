#!/bin/sh
# docker run bow train ... is bow train ...; anything that is no command of bow is run as it is: docker run bow python
case "${1:-}" in
    train | report | doctor | bench | help | -*) exec bow "$@" ;;
    "") exec bow train ;;
    *) exec "$@" ;;
esac
