//go:build tools

// Names the YCSB client that scripts/setup builds, so that go.mod and go.sum fix its version.
package ycsb

import _ "github.com/pingcap/go-ycsb/cmd/go-ycsb"
