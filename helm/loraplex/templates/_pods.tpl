{{/* What every pod has in common: the restricted pod security standard, and no token.
     Service links are off: for a Service named loraplex they would set LORAPLEX_PORT. */}}
{{- define "loraplex.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "loraplex.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A number as people write it; YAML's numbers arrive as floats, which print as 8.59e+09. */}}
{{- define "loraplex.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 .) (floor .)) -}}
{{ int64 . }}
{{- else if or (kindIs "map" .) (kindIs "slice" .) -}}
{{ toJson . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{/* Environment from a map of settings. */}}
{{- define "loraplex.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ include "loraplex.text" $value | quote }}
{{- end }}
{{- end }}

{{/* Environment that gateway and worker share. The root file system is read-only, so what
     libraries cache goes to /tmp, and downloaded models go to the data volume. */}}
{{- define "loraplex.commonEnv" -}}
- {name: HOME, value: /tmp}
- {name: LORAPLEX_DATA_DIR, value: /var/lib/loraplex}
- name: LORAPLEX_WORKER_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "loraplex.streamSecretName" . }}, key: token}
- {name: LORAPLEX_WORKER_TLS_CERT, value: /etc/loraplex/stream/tls.crt}
{{- end }}

{{- define "loraplex.databaseEnv" -}}
{{- with .Values.database.existingSecret }}
- name: LORAPLEX_DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $.Values.database.key }}}
{{- end }}
{{- end }}

{{- define "loraplex.quotasEnv" -}}
{{- with .Values.quotas.existingSecret }}
- name: LORAPLEX_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $.Values.quotas.key }}}
{{- end }}
{{- end }}

{{- define "loraplex.mounts" -}}
- {name: data, mountPath: /var/lib/loraplex}
- {name: stream, mountPath: /etc/loraplex/stream, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.model.existingClaim }}
- {name: model, mountPath: {{ .Values.model.mountPath }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Volumes of `loraplex.mounts`. Takes (list root keys-of-the-stream's-secret). */}}
{{- define "loraplex.volumes" -}}
{{- $root := index . 0 -}}
- name: data
  persistentVolumeClaim: {claimName: {{ include "loraplex.dataClaimName" $root }}}
- name: stream
  secret:
    secretName: {{ include "loraplex.streamSecretName" $root }}
    defaultMode: 0440
    items:
      {{- range index . 1 }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
- name: tmp
  emptyDir: {}
{{- with $root.Values.model.existingClaim }}
- name: model
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{/* Where pods may run. Takes the values of a component. */}}
{{- define "loraplex.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* The gateway's affinity, with the worker's node required: a ReadWriteOnce volume is on one. */}}
{{- define "loraplex.affinityToWorker" -}}
{{- $affinity := deepCopy .Values.gateway.affinity -}}
{{- $pods := default dict $affinity.podAffinity -}}
{{- $labels := include "loraplex.selector" (list . "worker") | fromYaml -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $terms := append (default list $pods.requiredDuringSchedulingIgnoredDuringExecution) $term -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" $terms -}}
{{- $_ := set $affinity "podAffinity" $pods -}}
{{- toYaml $affinity -}}
{{- end }}
