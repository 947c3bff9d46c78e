// OOM scores of processes, for the shim of gVisor. The shim asks for the score of a process that is never killed. In a
// machine of the landscape only the host's root may lower a score, and the shim would end; here it keeps its score.
package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

const (
	OOMScoreMaxKillable = -999
	OOMScoreAdjMax      = 1000
)

// SetOOMScore writes the score of a process, if the machine allows it.
func SetOOMScore(pid, score int) error {
	err := os.WriteFile(scoreFile(pid), []byte(strconv.Itoa(score)), 0o644)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// GetOOMScoreAdj reads the score of a process.
func GetOOMScoreAdj(pid int) (int, error) {
	content, err := os.ReadFile(scoreFile(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

func scoreFile(pid int) string {
	return fmt.Sprintf("/proc/%d/oom_score_adj", pid)
}
