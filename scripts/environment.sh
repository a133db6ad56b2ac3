# Make a virtual environment in $1 with this checkout and the given extras; say that, and errors.
# Sourced by `scripts/demo` and `scripts/suite`; $python, where set, chooses the interpreter.
make_environment() {
    local folder=$1
    shift
    if [ ! -x "$folder/bin/python" ]; then
        echo "installing into $folder, which may take some minutes" >&2
        "${python:-python3}" -m venv "$folder"
    fi
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        "$folder/bin/python" -m pip install --quiet "$@"
}
