# Shared by the scripts here: a Python, a compiler and the project's own environment in .venv.
# Source it; it defines functions only. Runs on bash 3.2 and later (macOS ships 3.2).
#
#   FOREDRAFT_PYTHON   the Python to use (default: the newest one >= 3.11 on PATH)
#   FOREDRAFT_VENV     where the environment lives (default: .venv in the checkout)
#
# pip's own configuration and PIP_* variables apply as they are. Progress goes to standard error.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${FOREDRAFT_VENV:-$ROOT/.venv}"
PY="$VENV/bin/python"

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$@"
    exit 2
}

# run_quiet WORDS COMMAND...: runs the command silently, says what is going on, shows the log's tail if it fails.
run_quiet() {
    local words="$1" log status=0 started=$SECONDS ticker
    shift
    log="$(mktemp "${TMPDIR:-/tmp}/foredraft.XXXXXX")" || die "cannot write to ${TMPDIR:-/tmp}: set TMPDIR"
    say "$words …"
    (
        # $$ is the script itself: the ticker ends with it, whatever ends it.
        while sleep 30 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do say "  … $((SECONDS - started)) s"; done
    ) &
    ticker=$!
    "$@" </dev/null >"$log" 2>&1 || status=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$log" >&2
        die "failed: $words (the whole log: $log)"
    fi
    rm -f "$log"
}

# --- the system's packages ---------------------------------------------------------------------------------

# install_line PIECE: the one line that installs it on this system. PIECE is python, venv, compiler or browser.
install_line() {
    local piece="$1" version="${2:-3}"
    if [ "$(uname -s)" = Darwin ]; then
        case "$piece" in
            browser) echo "brew install --cask chromium" ;;
            compiler) echo "xcode-select --install" ;;
            *) echo "brew install python@3.12" ;;
        esac
    elif command -v apt-get >/dev/null 2>&1; then
        case "$piece" in
            browser) echo "apt-get install -y chromium" ;;
            compiler) echo "apt-get install -y g++" ;;
            venv) echo "apt-get install -y python$version-venv" ;;
            *) echo "apt-get install -y python3 python3-venv" ;;
        esac
    elif command -v dnf >/dev/null 2>&1; then
        case "$piece" in
            browser) echo "dnf install -y chromium" ;;
            compiler) echo "dnf install -y gcc-c++" ;;
            *) echo "dnf install -y python3.12" ;;
        esac
    elif command -v pacman >/dev/null 2>&1; then
        case "$piece" in
            browser) echo "pacman -S --needed --noconfirm chromium" ;;
            compiler) echo "pacman -S --needed --noconfirm gcc" ;;
            *) echo "pacman -S --needed --noconfirm python" ;;
        esac
    elif command -v apk >/dev/null 2>&1; then
        case "$piece" in
            browser) echo "apk add chromium" ;;
            compiler) echo "apk add g++ linux-headers" ;;
            *) echo "apk add python3" ;;
        esac
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_install() {
    as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@"
}

may_apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" -eq 0 ] || sudo -n true >/dev/null 2>&1
}

# provide PIECE WORDS [VERSION]: installs the piece where apt-get may be used, else says the line and exits 2.
provide() {
    local line packages
    line="$(install_line "$1" "${3:-3}")"
    [ -n "$line" ] || die "$2 is missing: install it with this system's package manager and try again"
    if may_apt; then
        packages="${line#apt-get install -y }"
        # The package names are words of their own.
        # shellcheck disable=SC2086
        run_quiet "installing $packages" apt_install $packages
        return
    fi
    if [ "$(id -u)" -ne 0 ]; then
        case "$line" in brew* | xcode-select*) ;; *) line="sudo $line" ;; esac
    fi
    say "$2 is missing. This line installs it:"
    die "  $line"
}

# --- Python ------------------------------------------------------------------------------------------------

# On macOS the tools in /usr/bin are stubs that open a window until Xcode's command line tools are there.
is_stub() {
    [ "$(uname -s)" = Darwin ] || return 1
    case "$(command -v "$1")" in
        /usr/bin/*) ! xcode-select -p >/dev/null 2>&1 ;;
        *) return 1 ;;
    esac
}

find_python() {
    local name
    for name in "${FOREDRAFT_PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$name" >/dev/null 2>&1 && ! is_stub "$name" &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
        [ "$name" != "${FOREDRAFT_PYTHON:-}" ] || die "FOREDRAFT_PYTHON is '$name'; it must be Python 3.11 or newer"
    done
    return 1
}

ensure_python() {
    PYTHON="$(find_python)" || {
        [ -z "${FOREDRAFT_PYTHON:-}" ] || exit 2
        provide python "Python 3.11 or newer"
        PYTHON="$(find_python)" || die "this system's python3 is older than 3.11: set FOREDRAFT_PYTHON to a newer one"
    }
}

ensure_venv_module() {
    "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1 && return
    provide venv "Python's venv module" "$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1 || die "$PYTHON still has no venv module"
}

# --- a C and C++ compiler ----------------------------------------------------------------------------------

compiles() {
    local compiler="$1" language="$2" header="$3"
    [ -n "$compiler" ] && command -v "${compiler%% *}" >/dev/null 2>&1 || return 1
    is_stub "${compiler%% *}" && return 1
    # CC and CXX may carry flags.
    # shellcheck disable=SC2086
    printf '#include <%s>\nint main(void) { return 0; }\n' "$header" |
        $compiler -x "$language" -fsyntax-only - >/dev/null 2>&1
}

any_compiles() {
    local language="$1" header="$2" compiler
    shift 2
    for compiler in "$@"; do
        compiles "$compiler" "$language" "$header" && return 0
    done
    return 1
}

have_compiler() {
    any_compiles c stdio.h "${CC:-}" cc gcc clang && any_compiles c++ vector "${CXX:-}" c++ g++ clang++
}

# cmake and ninja are not asked for: the build backend brings them as wheels where the system has none.
ensure_compiler() {
    have_compiler && return
    provide compiler "A C++ compiler (llama.cpp is built from source)"
    have_compiler || die "the C++ compiler does not compile a one-line program: try it by hand"
}

# --- a browser ---------------------------------------------------------------------------------------------

# Tests open reports in it; FOREDRAFT_CHROMIUM names another one.
ensure_browser() {
    local name
    [ -z "${FOREDRAFT_CHROMIUM:-}" ] || return 0
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" >/dev/null 2>&1 && return
    done
    provide browser "Chromium (tests open reports in it)"
}

# --- the environment ---------------------------------------------------------------------------------------

ensure_venv() {
    local home="$VENV/.foredraft-root"
    # A copied or moved environment still points at its old place: make it anew.
    if [ -f "$home" ] && [ "$(cat "$home")" != "$ROOT" ]; then rm -rf "$VENV"; fi
    if ! "$PY" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        ensure_python
        ensure_venv_module
        run_quiet "creating ${VENV#"$ROOT"/} with $("$PYTHON" --version)" "$PYTHON" -m venv --clear "$VENV"
    fi
    printf '%s\n' "$ROOT" >"$home" || die "cannot write to $VENV"
}

# ensure_env EXTRAS: .venv holds foredraft (editable) with these extras; nothing to do if pyproject.toml is unchanged.
ensure_env() {
    local extras="$1" stamp hash words="installing foredraft[$1]"
    ensure_venv
    stamp="$VENV/.foredraft-installed-$extras"
    hash="$(cksum <"$ROOT/pyproject.toml") $("$PY" --version)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$hash" ]; then return; fi
    case ",$extras," in
        *,llama,* | *,all,*)
            if ! "$PY" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("llama_cpp") is None)'; then
                ensure_compiler
                words="$words and building llama.cpp, about 5 minutes the first time"
            fi
            ;;
    esac
    run_quiet "$words" "$PY" -m pip install --no-input -e "${ROOT}[$extras]"
    printf '%s\n' "$hash" >"$stamp"
}
