#!/bin/sh
# Run a target of the Makefile in a privileged container of its own: for users without root on Linux.
#   run.sh demo|landscape|status|down NAME
# GARDENER_ENGINE_CACHE       where caches are kept: a volume (default: gardener-cache), or a directory of a Linux machine
# GARDENER_ENGINE_ARGS        further arguments of `docker run`, for example a company's CA certificates
# GARDENER_ENGINE_BUILD_ARGS  further arguments of `docker build`
set -eu
target=$1
name=$2
container=gardener-$name
image=gardener-landscape
cache=${GARDENER_ENGINE_CACHE:-gardener-cache}
checkout=$(cd "$(dirname "$0")/../.." && pwd)

# Variables that are passed to the container if they are set; settings of pip and Go with file names are not.
proxies="HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy"
registries="PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT GOPROXY GOSUMDB GONOSUMDB GOPRIVATE"

if [ -n "${HTTP_PROXY-}${HTTPS_PROXY-}${http_proxy-}${https_proxy-}" ]; then
    # A proxy must not be used for the landscape's own addresses and names.
    NO_PROXY=${NO_PROXY:-${no_proxy-}}
    NO_PROXY=${NO_PROXY:+$NO_PROXY,}198.18.0.0/15,.garden.test
    no_proxy=$NO_PROXY
    export NO_PROXY no_proxy
fi

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

require_engine() {
    if ! docker info >/dev/null 2>&1; then
        fail "a landscape makes network namespaces, mounts and control groups, so it needs one of:" \
            "  root on Linux:       sudo make $target" \
            "  a container engine:  docker, such that \`docker info\` answers you; then make $target runs in a container" \
            "Neither is here: this is $(uname -s), you are user $(id -u), and $(engine_lacks)."
    fi
    case $(docker info --format '{{.SecurityOptions}}' 2>/dev/null) in
        *rootless*) fail "this engine runs without root, which a landscape needs: choose another by DOCKER_HOST or \`docker context\`" ;;
    esac
}

engine_lacks() {
    if command -v docker >/dev/null 2>&1; then
        echo "docker does not answer ($(docker info 2>&1 >/dev/null | tail -n 1))"
    else
        echo "there is no docker command"
    fi
}

state() {
    # For a container that does not exist, it prints an empty line, too.
    found=$(docker container inspect --format '{{.State.Running}}' "$container" 2>/dev/null) || found=none
    echo "$found"
}

start() {
    case $(state) in
        true) ;;
        false) docker start "$container" >/dev/null ;;
        *) build && create ;;
    esac
}

build() {
    echo "image $image (Debian packages; a minute once)"
    arguments=""
    for variable in $proxies; do
        [ -z "$(printenv "$variable")" ] || arguments="$arguments --build-arg $variable"
    done
    # shellcheck disable=SC2086
    tar -cf - -C "$checkout/landscape" packages.sh container/Dockerfile |
        docker build --quiet --tag "$image" --file container/Dockerfile $arguments ${GARDENER_ENGINE_BUILD_ARGS-} - >/dev/null
}

create() {
    arguments=""
    for variable in $proxies $registries; do
        [ -z "$(printenv "$variable")" ] || arguments="$arguments --env $variable"
    done
    [ "$(uname -s)" = Linux ] && [ ! -d /lib/modules ] || arguments="$arguments --volume /lib/modules:/lib/modules:ro"
    # Home is one volume: nodes get links to images in the cache, and no overlay lies on another. Control groups of its
    # own: kubelets count from their root. Ports: those of landscape/container/outside.py.
    # shellcheck disable=SC2086
    docker run --detach --name "$container" --privileged --cgroupns=private --init \
        --tmpfs /run:exec,mode=755 --volume "$cache:/root" --sysctl net.ipv4.ip_forward=1 \
        --publish 127.0.0.1::8233 --publish 127.0.0.1::443 \
        $arguments --env "GARDENER_LANDSCAPE=$name" ${GARDENER_ENGINE_ARGS-} "$image" >/dev/null
    echo "container $container"
}

# The checkout as it is now: a copy, so that root in the container leaves no files of its own among the user's.
# Packages are installed once per lock file.
send() {
    COPYFILE_DISABLE=1 tar -cf - -C "$checkout" --exclude=./.git --exclude=./.venv --exclude='./.*_cache' \
        --exclude=__pycache__ --exclude='*.egg-info' --exclude='*.kubeconfig' --exclude='./*.tar' . |
        docker exec --interactive "$container" sh -ec '
            find . -mindepth 1 -maxdepth 1 ! -name "*.kubeconfig" -exec rm -rf {} +
            tar --extract --no-same-owner --file -
            venv=$HOME/.cache/venvs/$(cksum < requirements.lock | tr " " -)
            mkdir -p "$venv"
            ln -sfn "$venv" /venv
            exec flock "$HOME/.cache/venvs" make --no-print-directory --silent venv VENV="$venv"'
}

# With a terminal, so that an interrupt reaches the process in the container.
inside() {
    terminal=""
    [ ! -t 0 ] || [ ! -t 1 ] || terminal="--interactive --tty"
    # shellcheck disable=SC2086
    docker exec $terminal "$container" "$@"
}

port() {
    docker port "$container" "$1/tcp" | head -n 1
}

# The addresses that were printed are for the inside of the container; these are for the outside.
show_outside() {
    printf '\nThat is in container %s. From here:\n' "$container"
    printf '  Temporal UI:  http://%s\n' "$(port 8233)"
    config=$(docker exec "$container" python -m landscape.container.outside "$name" "$(port 443)")
    if [ -n "$config" ]; then
        rm -f "$checkout/shoot.kubeconfig"
        (umask 077 && printf '%s\n' "$config" > "$checkout/shoot.kubeconfig")
        printf '  kubectl:      kubectl --kubeconfig=shoot.kubeconfig get nodes, or docker exec %s kubectl get nodes\n' "$container"
    fi
    printf '  all else:     docker exec -it %s bash\n' "$container"
}

case $target in
    demo | landscape)
        require_engine
        before=$(state)
        start
        send
        if [ "$before" = false ]; then
            echo "container $container was stopped, and the landscape in it with all its processes: it is created again"
            inside gardener landscape down --name "$name"
        fi
        inside make --no-print-directory "$target" NAME="$name" VENV=/venv
        show_outside
        ;;
    status)
        require_engine
        [ "$(state)" = true ] || fail "there is no landscape $name: no container $container runs; make demo makes one"
        inside gardener landscape status --name "$name"
        show_outside
        ;;
    down)
        require_engine
        if [ "$(state)" = none ]; then
            echo "there is no landscape $name: no container $container"
            exit 0
        fi
        start
        # After an early interruption the container has neither a landscape nor the command.
        if docker exec "$container" test -x /venv/bin/gardener; then
            inside gardener landscape down --name "$name"
        fi
        docker rm --force "$container" >/dev/null
        rm -f "$checkout/shoot.kubeconfig"
        echo "container $container removed; its caches stay in $cache, and image $image"
        [ "$cache" != gardener-cache ] || echo "to remove them, too: docker volume rm $cache; docker image rm $image"
        ;;
    *) fail "usage: $0 demo|landscape|status|down NAME" ;;
esac
