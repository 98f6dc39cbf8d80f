module outboard.invalid/tests/ycsb

go 1.20

require github.com/pingcap/go-ycsb v1.0.1
