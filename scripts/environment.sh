# Make a virtual environment in $1 with this checkout and the given extras, and say nothing but errors.
# Sourced by `scripts/demo` and `scripts/suite`; $python, where set, chooses the interpreter.
make_environment() {
    local folder=$1
    shift
    if [ ! -x "$folder/bin/python" ]; then
        "${python:-python3}" -m venv "$folder"
    fi
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        "$folder/bin/python" -m pip install --quiet "$@"
}
