# SPDX-License-Identifier: Apache-2.0
# The front door. `make demo` and `make test` install what is missing (Debian packages), build, and run.
.PHONY: all docs nightly test-packages build benches demo demo-engines tokenizer test test-long check test-engines test-openapi test-gateway test-kube engines bench bench-peers bench-routers bench-tokens lint fuzz format install clean help sim options-page wheel deb dist test-install test-page

all: build

help:
	@echo "make build    the program and the library, in build/release"
	@echo "make demo     4 mock engines and the router; round-robin against kv (KEEP=1 leaves them running, PROMETHEUS=1 beside one)"
	@echo "make test     the tests, under the address and thread sanitizers"
	@echo "make test-long  what they leave out: more under the thread sanitizer, fleets, attacks of minutes"
	@echo "make check    a minute's look: the release build, its unit tests, the first end-to-end tests"
	@echo "make nightly  what takes hours: a million seeds of each mode of the view simulation, long random tests, fuzzing (FUZZ_SECONDS=120)"
	@echo "make tokenizer  the library that makes token ids here, in build/tokenizer (optional: needs cargo 1.85 and crates)"
	@echo "make test-page  the page in a browser (optional: needs chromium, node and npm); screenshots in build/page/shots"
	@echo "make engines  a real vLLM on the CPU with tiny models, in build/engines (or ENGINES_DIR): about 8 GB"
	@echo "make test-engines  tests against it (10 minutes at most)"
	@echo "make demo-engines  the demo with two of them instead of mocks"
	@echo "make test-openapi  every port's OpenAPI document against the program, by Schemathesis (optional: PyPI)"
	@echo "make test-gateway  the endpoint picker behind a real Envoy (optional: a wheel of PyPI)"
	@echo "make benches  the benchmarks' programs, in build/release/bench"
	@echo "make bench    benchmarks, ratios in one run beside those recorded last (RECORD=1: this run is recorded, too)"
	@echo "make bench-peers  the index beside Dynamo's and SMG's, in turns (optional: needs cargo and crates)"
	@echo "make bench-routers  kvroute beside public routers over the same mock engines, in turns (optional: needs Python 3.12 and wheels)"
	@echo "make bench-tokens  what token ids made by the router save (optional: needs make tokenizer, make engines)"
	@echo "make sim      routing policies over simulated fleets, in virtual time (ARGS=--help: scenes and policies)"
	@echo "make docs     the site of docs/, in build/site"
	@echo "make lint     include directions, refused functions, clang-tidy"
	@echo "make fuzz     every fuzz target for FUZZ_SECONDS (10) each"
	@echo "make wheel    the Python package with library and program, in build/wheel"
	@echo "make deb      Debian packages, in build/deb"
	@echo "make dist     the committed sources as a tarball, in build/dist"
	@echo "make test-install  wheel, packages and containers' files in bare systems (needs root and debootstrap; minutes)"
	@echo "make install  into PREFIX (/usr/local), for packages staged below DESTDIR"

build:
	@scripts/deps.sh build
	@scripts/moved.sh build/release
	@cmake --preset release -DKVR_TESTS=OFF -DKVR_BENCH=OFF -DKVR_LTO=ON > build-release.log 2>&1 || (cat build-release.log; exit 1)
	@rm -f build-release.log
	@cmake --build --preset release

benches: build
	@cmake --preset release -DKVR_TESTS=OFF -DKVR_LTO=ON > /dev/null && cmake --build --preset release | tail -1

demo: build
	@scripts/demo.sh

test:
	@scripts/deps.sh build test python
	@/usr/bin/python3 tests/run.py

# What make test leaves out: the same threads with other words under the thread sanitizer, fleets, attacks of minutes.
test-long:
	@scripts/deps.sh build test python
	@/usr/bin/python3 tests/run.py --long

check:
	@scripts/deps.sh build test python
	@/usr/bin/python3 tests/run.py --quick

nightly:
	@scripts/deps.sh build test lint
	@scripts/nightly.sh $(or $(FUZZ_SECONDS),120)

# Apart from make build, which needs no Rust; make test tests it where it is built.
tokenizer:
	@scripts/tokenizer.sh

# Optional: says so where there is no browser.
test-page: test-packages build
	@scripts/page.sh

# What benchmarks and engines' tests run in Python needs.
test-packages:
	@scripts/deps.sh build test

# Real engines: apart from make test, which needs none.
engines:
	@scripts/engines/setup.sh

test-engines: test-packages build
	@scripts/engines/test.sh

demo-engines: build
	@scripts/engines/demo.sh

# PORTS="admin" EXAMPLES=50 SEED=7: see tests/outsiders/openapi.py
test-openapi: test-packages build
	@SCHEMATHESIS=$$(scripts/openapi.sh) && SCHEMATHESIS=$$SCHEMATHESIS KVROUTE=$(CURDIR)/build/release/kvroute /usr/bin/python3 -W ignore tests/outsiders/openapi.py

# A real Kubernetes API server, where there is a Go to build it with: apart from make test, which needs none.
test-kube: test-packages build
	@KUBE=$$(scripts/kube.sh) && KUBE=$$KUBE KVROUTE=$(CURDIR)/build/release/kvroute /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/outsiders/test_kube.py

# ARGS="-k leave": go to pytest
test-gateway: test-packages build
	@scripts/deps.sh gateway
	@scripts/envoy.sh >/dev/null && scripts/envoy.sh test $(ARGS)

bench: test-packages benches
	@scripts/bench.sh

bench-peers: test-packages benches
	@scripts/bench_peers.sh

# ARGS="--rows conv-60 --rounds 2 ...": see ARGS=--help
bench-routers: test-packages build
	@scripts/bench_routers.sh $(ARGS)

# ARGS="first": one part; see bench/tokens/measure.py
bench-tokens: test-packages build
	@scripts/bench_tokens.sh $(ARGS)

lint:
	@scripts/deps.sh build test lint
	@scripts/lint.sh

# The site of docs/, in build/site.
docs:
	@scripts/deps.sh docs
	@mkdocs build -q -f scripts/site/mkdocs.yml && echo "build/site/index.html"

fuzz:
	@scripts/deps.sh build test lint
	@scripts/fuzz.sh $(or $(FUZZ_SECONDS),10)

format:
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cc')

PREFIX ?= /usr/local
INSTALL_FROM ?= build/release
options-page: build
	@scripts/options_page.sh

sim: benches
	@build/release/bench/bench_sim $(ARGS)

install: build
	DESTDIR="$(DESTDIR)" cmake --install "$(INSTALL_FROM)" --prefix "$(PREFIX)"

clean:
	rm -rf build

# What is installed: library and program in one Python package, in build/wheel.
wheel: build
	@scripts/deps.sh python
	@scripts/wheel.sh

deb:
	@scripts/deps.sh build python deb
	@scripts/deb.sh

dist:
	@scripts/dist.sh

# Apart from make test: systems are fetched, and the program is built twice more.
test-install: wheel deb
	@scripts/deps.sh build install
	@tests/install/run.sh
