# Everything a contributor or a new user runs. `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEMO   ?= .demo
BROWSE ?= tests/browser
ON_POSTGRES ?= tests
# Images of containers often set it; without compiled files each process of a test compiles the program again.
unexport PYTHONDONTWRITEBYTECODE

SHORT := not long and not slow and not npm and not object_store and not numba and not servers and not fleet
LONG  := long and not slow and not npm and not object_store and not numba and not servers and not fleet
# Neighbours stay on one worker, so most fixtures of a module are set up once.
PARALLEL := -n 2 --dist worksteal
# The databases of tests are dropped with their folders: thousands of them would fill a disk.
POSTGRES := -p tests.postgres -o tmp_path_retention_policy=failed

.DEFAULT_GOAL := check
.PHONY: check help demo test test-long test-slow test-postgres test-postgres-long test-postgres-bucket test-postgres-bucket-long test-object-store test-servers test-fleet test-numba test-browser screenshots fuzz fuzz-api crash kill room-for-one cut-push hostile hostile-files escape slow-crowds worst-shapes faulty-disk clients lint types layers house serve bench wheel clean

check: lint types layers test test-long  ## every check (the default)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/organ: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; set PYTHON=/path/to/python3" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(BIN)/pytest: $(BIN)/organ
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test
	@touch $@

demo: $(BIN)/organ  ## take the shipped models apart, put one back together, make a chimera and measure it, open the catalog
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[validate]'
	$(BIN)/organ demo --home $(DEMO)

test: $(BIN)/pytest  ## the tests
	$(BIN)/pytest $(PARALLEL) -m "$(SHORT)"

test-long: $(BIN)/pytest  ## the tests that take a second or more: faults, documents, examples, the wheel
	$(BIN)/pytest $(PARALLEL) -m "$(LONG)"

test-postgres: $(BIN)/pytest  ## the tests on a PostgreSQL server of their own
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres]' --group postgres
	PYTHONPATH=. $(BIN)/pytest $(PARALLEL) $(POSTGRES) -m "$(SHORT)" $(ON_POSTGRES)

test-postgres-long: $(BIN)/pytest  ## the long tests on a PostgreSQL server of their own
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres]' --group postgres
	PYTHONPATH=. $(BIN)/pytest $(PARALLEL) $(POSTGRES) -m "$(LONG)" $(ON_POSTGRES)

test-postgres-bucket: $(BIN)/pytest  ## the tests on a PostgreSQL server and an S3 server (TEST_S3=swift: OpenStack Swift)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres,s3]' --group postgres --group object-store
	PYTHONPATH=. $(BIN)/pytest $(PARALLEL) $(POSTGRES) -p tests.buckets -m "$(SHORT)" $(ON_POSTGRES)

test-postgres-bucket-long: $(BIN)/pytest  ## the long tests on a PostgreSQL server and an S3 server
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres,s3]' --group postgres --group object-store
	PYTHONPATH=. $(BIN)/pytest $(PARALLEL) $(POSTGRES) -p tests.buckets -m "$(LONG)" $(ON_POSTGRES)

test-object-store: $(BIN)/pytest  ## models and blobs in an S3 server on this machine
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[s3]' --group object-store
	$(BIN)/pytest -m object_store tests/client/test_object_store.py
	PYTHONPATH=. $(BIN)/pytest $(PARALLEL) -p tests.buckets tests/journeys tests/test_relocation.py

test-servers: $(BIN)/pytest  ## two servers behind nginx, with PostgreSQL and a bucket (needs nginx and openssl)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres,s3]' --group postgres --group object-store
	$(BIN)/pytest -m servers tests/test_several_servers.py

test-fleet: $(BIN)/pytest  ## fleets with the scheduler of Dask (installs it), and a run in which each part is killed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fleet]'
	$(BIN)/pytest -m fleet tests/ingest/test_fleet_dask.py
	$(BIN)/python -m tests.faults.hostile fleet-kills

test-numba: $(BIN)/pytest  ## the compiled kernels of the codecs beside numpy (installs numba)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fast]'
	$(BIN)/pytest $(PARALLEL) -m "not slow" tests/store tests/test_references.py

test-slow: $(BIN)/pytest  ## the long runs: 16 GiB sparse file, kill -9 loop
	$(BIN)/pytest -m slow --hypothesis-profile=default

test-browser: $(BIN)/pytest  ## the catalog in a real browser, and whether everybody can use it (needs Chromium)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group browser
	$(BIN)/pytest $(PARALLEL) -m browser $(BROWSE)

screenshots: $(BIN)/pytest  ## the pictures in docs/ (needs Chromium)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group browser
	$(BIN)/python -m tests.browser.screenshots

fuzz: $(BIN)/pytest  ## a million damaged headers, a hundred thousand damaged blobs: some minutes
	$(BIN)/python -m tests.faults.hostile fuzz --target headers --cases 1000000 --workers 2
	$(BIN)/python -m tests.faults.hostile fuzz --target blobs --cases 100000 --workers 2
	$(BIN)/pytest -m slow tests/faults/test_fuzz.py

fuzz-api: $(BIN)/pytest  ## the API against its own description: some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group fuzz-api
	$(BIN)/python -m tests.faults.hostile api

crash: $(BIN)/pytest  ## power cuts in every legal state, sweeps beside others: a quarter of an hour
	$(BIN)/python -m tests.faults.hostile power-cuts
	$(BIN)/pytest -m slow tests/faults/test_concurrent_sweep.py

kill: $(BIN)/pytest  ## more than a thousand kills at random moments: half an hour
	$(BIN)/python -m tests.faults.hostile kills --kills 1000
	$(BIN)/python -m tests.faults.hostile kills --families --kills 300
	$(BIN)/python -m tests.faults.hostile evolve-kills

room-for-one: $(BIN)/pytest  ## 8 shards of 300 MB on a disk with room for one, ingested with ten kills: some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[validate]'
	$(BIN)/python -m tests.faults.hostile room-for-one

cut-push: $(BIN)/pytest  ## a push of 1.2 GB through a line that is cut, to a server that is killed: some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m tests.faults.hostile cut-push

hostile: $(BIN)/pytest  ## two hundred hostile uploads through a running server: some minutes
	$(BIN)/python -m tests.faults.hostile uploads --cases 200

hostile-files: $(BIN)/pytest  ## more than three hundred hostile files and folders, by command line and by upload: a quarter of an hour
	$(BIN)/python -m tests.faults.hostile files

slow-crowds: $(BIN)/pytest  ## 500 slow or hostile connections of each kind beside 50 honest users: some minutes
	$(BIN)/python -m tests.faults.hostile crowds

escape: $(BIN)/pytest  ## a hostile program in the place of each confined one: what it can do, as root and as another user
	$(BIN)/python -m tests.faults.hostile escape

worst-shapes: $(BIN)/pytest  ## every page, job and intake step after models that were made slow: half an hour
	$(BIN)/python -m tests.faults.hostile worst-shapes

faulty-disk: $(BIN)/pytest  ## every call of the disk and every page of the database fails
	$(BIN)/pytest -m slow tests/faults/test_failing_disk.py tests/faults/test_failing_database.py

clients: $(BIN)/pytest  ## stock clients against our routes and our OpenAPI document (needs node, curl and aria2c)
	npm install --silent --no-save --prefix .clients @huggingface/hub@2 @huggingface/gguf@0.4 openapi-typescript@7 typescript@5 @node-llama-cpp/linux-x64@3
	$(BIN)/pytest -m npm tests/web/test_npm_clients.py tests/web/test_stock_clients.py tests/gguf/test_mixes_beside_llama.py

lint: $(BIN)/pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/pytest
	$(BIN)/mypy

layers: $(BIN)/pytest
	$(BIN)/lint-imports

house: $(BIN)/pytest  ## how much code there is, what is defined twice, and the ways of five tasks through the files
	$(BIN)/python -m bench.structure

serve: $(BIN)/organ  ## browse your own registry
	$(BIN)/organ serve

bench: $(BIN)/pytest  ## the figures of the README, with peers side by side
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench,validate]'
	$(BIN)/python -m bench.all

wheel: $(BIN)/pytest  ## build a wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove the environment, the demo's registry and caches
	rm -rf $(VENV) $(DEMO) .clients build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
